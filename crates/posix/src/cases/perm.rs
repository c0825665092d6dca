suite! { "perm"; }
