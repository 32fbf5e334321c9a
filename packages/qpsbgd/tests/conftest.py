from suite import *  # noqa: F403
