"""Who may do what: principals, users, roles, ACLs, API keys, logins and the audit log."""
