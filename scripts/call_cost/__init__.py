"""What a call costs a server, in CPU and memory, and how many one core holds: what the benchmarks have in common.

A benchmark names servers to start (:class:`~scripts.call_cost.servers.Subject`) and what is asked of them. Each server
is one process pinned to one core; the simulated callers of ``offhook loadtest`` have the others.
"""
