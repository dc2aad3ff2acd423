from typing import Any

handler: Any
