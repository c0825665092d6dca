suite! { "lock"; }
