"""Schemas: what records must look like, version by version.

definition.py             what every kind of schema offers: parse, check records, compare with another version
json_schema.py            JSON Schema, by jsonschema-rs            json_cost.py            what checking by one may cost
json_pointer.py           references inside a JSON Schema
json_containment.py       proofs about JSON Schemas          json_bounds.py          and about single values
json_compatibility.py     which documents one version accepts and another does not
avro.py                   Avro definitions, by fastavro            avro_wire.py            Avro's binary encoding, read strictly
avro_compatibility.py     Avro's own resolution rules
protobuf.py               Protobuf messages, by protobuf           protoc.py               definitions, by the real compiler
protobuf_compatibility.py what survives from one version's bytes to the other's message
kinds.py                  the three by name
reference.py              "orders", "orders:3", "orders:shop.Order"
registry.py               versions, compatibility and bindings to topics, in the table `__schemas`
worker.py, worker_main.py a process for what may take long or end badly
validation.py             records against schemas, on the write path
marks.py                  how a record says which version wrote it
writers.py                which version each record is checked against, and the stamp it gets
operations.py             what clients may ask for, each behind the access check
"""
