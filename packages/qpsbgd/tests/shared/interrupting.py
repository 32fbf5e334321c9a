"""Ctrl-C at any operation of Python code of some folder, as often as one likes and always at the same one."""

import sys


class Interrupt:
    """Raises KeyboardInterrupt at one operation of the code in some files, or counts them all.

    Args:
        files: How the names of these files begin.
        at: The number of the operation, from 1; None for none.

    Attributes:
        places: The numbers at which each operation of the code was reached, unless one of them is interrupted.
    """

    def __init__(self, files, at=None):
        self._files, self._at, self._count, self.places = tuple(map(str, files)), at, 0, {}

    def __call__(self, work, *arguments, **options):
        """Whether the work was interrupted; other errors are those of the work."""
        sys.settrace(self._called)
        try:
            work(*arguments, **options)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    def _called(self, frame, event, _):
        if event == "call":
            if not frame.f_code.co_filename.startswith(self._files):
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        elif event == "opcode":
            self._count += 1
            if self._count == self._at:
                raise KeyboardInterrupt
            if self._at is None:
                self.places.setdefault((frame.f_code, frame.f_lasti), []).append(self._count)
        return self._called


def watched_model(model):
    """All of a model that code which runs it might leave changed, as a text."""
    modules = [
        (
            *(name, type(module).__name__, len(module._forward_hooks), len(module._forward_pre_hooks)),
            sorted((key, str(value)) for key, value in vars(module).items() if isinstance(value, bool | int | str)),
            "forward" in vars(module),
        )
        for name, module in model.named_modules()
    ]
    tensors = [(name, t.tolist(), t.requires_grad) for name, t in model.state_dict(keep_vars=True).items()]
    return repr((modules, tensors))
