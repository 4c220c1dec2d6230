"""Consumer groups: committed offsets, members and the partitions they share, lag.

operations    what can be done with groups, as sessions call it
offsets       committed offsets, and sessions that read under the name of a group
truncation    offsets in logs that lost their tail
resets        where a group or a subscription is to continue
lag           how far groups are behind                            monitoring    pages of them, for an operator
coordinator   members of groups, and which partitions each has     membership, assignment    their state, and who gets what
"""
