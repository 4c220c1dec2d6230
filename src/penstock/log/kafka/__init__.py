"""The log in an Apache Kafka cluster (extra `[kafka]`).

| module | does |
|---|---|
| `engine` | the contract: start and stop, atomic appends, partitions by name |
| `topics` | creating, altering, truncating, deleting and adopting topics; the table of topics |
| `partition` | the contract of one partition: bounds, reading, watching |
| `sender` | queues of appends; one record batch in flight for each partition, resent until it is answered |
| `gathering` | which appends go into one transaction |
| `transactions` | atomic appends as Kafka transactions, from a pool of transactional ids |
| `lock` | the node's claim on its topics, which fences a node that was replaced |
| `membership` | the nodes that share a log, and which of them leads |
| `follower` | keeps the bounds and tails of partitions current that others write to |
| `reader` | fetches at an offset; finds what a reader may see |
| `appends`, `faults` | appends while they wait; what Kafka's refusals of them mean |
| `batches` | columns to record batch, record batch to block |
| `importing` | filling topics with those of another log |
| `client` | the only module that knows the Kafka library: connections, requests, error codes |
| `check` | what a cluster lacks, for `penstock doctor` |
| `names`, `settings` | names of topics in Kafka; how the cluster is reached and used |
"""
