"""WebShop in text: search, pages, options and purchases in a shop of any size, without Java or a browser."""

from retroformer.environments.webshop.section import Webshop
from retroformer.environments.webshop.taskset import WebshopTaskset, taskset

__all__ = ["Section", "WebshopTaskset", "taskset"]

Section = Webshop
