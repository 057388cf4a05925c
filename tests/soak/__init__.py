"""The soak: thousands of requests of every kind against real servers (``make soak``).

plan.py    which servers, and which requests each gets
bad.py     requests that have to be refused
client.py  sends them, and leaves some half way
judge.py   compares what came back with masked attention
run.py     one server from its start to its end
"""
