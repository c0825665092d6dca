suite! { "acl"; }
