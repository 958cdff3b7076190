"""The page: it shows events and owns no decoding. Nothing here imports torch."""
