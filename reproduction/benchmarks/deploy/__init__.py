"""How small, fast and exact are deployed networks?"""
