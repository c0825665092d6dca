suite! { "time"; }
