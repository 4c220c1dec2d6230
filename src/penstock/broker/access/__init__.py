"""Authentication and authorization: principals, users, roles, ACLs, API keys, logins and the audit log.

checks.py        declares every operation and its access check; a test covers all of them
policy.py        decides, from the users, roles and ACLs in directory.py, and else by defaults.py
logins.py        rules for all logins                       throttle.py      delays after failed logins
users.py, accounts.py, passwords.py                         users and password hashing
acls.py          access control lists                       api_keys.py      API keys (BlipMQ, Felix)
audit.py         the audit trail
"""
