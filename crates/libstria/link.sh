#!/bin/sh
# Makes the shared library that is installed, with its name and symbol versions: link.sh ARCHIVE DIRECTORY, where ARCHIVE is
# libstria.a of a build. What cargo links itself (libstria.so) has neither, and is for trying.
set -eu
archive=$1 to=$2 here=$(dirname "$0")
cc -shared -o "$to/libstria.so.0" -Wl,-soname,libstria.so.0 -Wl,--version-script="$here/stria.map" -Wl,--gc-sections -Wl,--no-undefined \
    $(sed -n 's/^        \(stria_.*\);$/-Wl,-u,\1/p' "$here/stria.map") "$archive" -lpthread -ldl -lm -lgcc_s -lc
ln -sf libstria.so.0 "$to/libstria.so"
