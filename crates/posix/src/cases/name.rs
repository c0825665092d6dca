suite! { "name"; }
