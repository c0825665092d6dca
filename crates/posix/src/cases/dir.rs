suite! { "dir"; }
