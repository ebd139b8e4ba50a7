"""The frozen intermediate representation: nodes over named values, with a text form."""

from __future__ import annotations

from taut.graph.builder import Builder
from taut.graph.node import Graph, Node, Value, Weight
from taut.graph.text import to_text
from taut.graph.verify import verify

__all__ = ["Builder", "Graph", "Node", "Value", "Weight", "to_text", "verify"]
