suite! { "xattr"; }
