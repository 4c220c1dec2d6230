"""Users, roles, ACLs, the audit trail and the cluster: messages, layouts, operations, client calls."""
