"""Measurements of Penstock, beside Redis Streams and Apache Kafka on the same machine: `make bench`, or `python -m bench --help`.

How a figure is made, so that it means something:
- both sides of a ratio take turns (A B A B ...) in one run, and the median of the rounds is reported;
- the load comes from a process of its own that sends bytes made beforehand and counts replies, the same program for both sides;
- each round warms up first, and its clock stops at the last reply;
- every reply is checked after the clock has stopped, and both sides are asked what they hold: a lost record fails the run;
- the durability mode, payload, connections and requests in flight stand beside every figure.

No figure enters a test: machines differ, and a busy one is not a broken one.
"""
