suite! { "node"; }
