"""Look at a run in a browser: one page about it, and a reader of its documents.

`facts` reads what is known of a run, `reading` its documents, `render` makes the
page of them, and `server` shows it live. All of it only reads.
"""
