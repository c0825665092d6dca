suite! { "mode"; }
