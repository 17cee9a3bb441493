"""What a run is: TOML files shipped with encamp, the schema that reads them, and the command they become.

Nothing here imports another folder of the project.
"""
