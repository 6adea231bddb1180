"""The choices a researcher replaces: whom to preempt and how, whom to admit, what to evict.

Each family has a module with its interface, the policies that ship and their names; a
config may also name one by its import path (`docs/policies.md`).
"""
