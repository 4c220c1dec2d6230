"""Records: producing them and finding them.

operations  what can be done with records, as sessions call it     producer    runs of records, routed and appended
spreading   runs that go to several partitions                     keys        the partition of a key
faults      records that are refused                               filters     which records a reader wants
conditions  the conditions of a filter, as text                    searching   looking for records that match
visibility  records whose time to live has ended
"""
