"""Dies before it does anything."""

import there_is_no_such_module_anywhere  # noqa: F401
