"""Tree search with a learned model: many roots at once, one network call per simulation."""

from rl_training.search.planning import (
    GumbelSearchResult,
    Root,
    SearchResult,
    Small,
    gumbel_muzero_search,
    muzero_search,
)

__all__ = ["GumbelSearchResult", "Root", "SearchResult", "Small", "gumbel_muzero_search", "muzero_search"]
