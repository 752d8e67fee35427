"""Objects that say how many pods belong together, of several APIs: one file a kind, read into one form.

A missing field counts as its API's default. `resources.GANG_SOURCES` says where these objects are, and
`decoder.SOURCES` how each is read.
"""
