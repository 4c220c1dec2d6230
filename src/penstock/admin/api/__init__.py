"""The admin API `/api/v1`: what operators, tools and the console do with a broker over HTTP.

`table.py` declares endpoints, `application.py` serves them, `openapi.py` describes them, `logins.py` authenticates the caller, and
`problems.py` puts refusals into words. The other modules hold the endpoints, by what they are about. Each calls the operations of the
broker that protocols call, with the principal of the caller, so there is one access check for all of them.
"""
