"""Cannot be imported: a module it needs is missing."""

import vtoken_module_that_nobody_has  # noqa: F401
