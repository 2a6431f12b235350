"""Names of a package that import their module when first used (PEP 562), so that importing the package stays cheap."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for a package's `__init__`.

    Args:
        package: Its `__name__`.
        homes: Name -> the module it comes from, below the package.
    """
    names = sorted(homes)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f'module {package!r} has no attribute {name!r}')
        return getattr(import_module(f'{package}.{homes[name]}'), name)

    return get, lambda: names, names
