//! Reading everything in a store: for `stria fsck`, never for service.
