"""`treadle.attach`: schedule the threads of running Spark applications through the kernel, and put everything back.

Puts the engine for Spark, the kernel's knobs, the policies and the safety measures together for users. Lachesis section
4, for several applications in one loop.
"""

from treadle.attachment.control import Attachment
from treadle.attachment.start import attach, look_on, watch

__all__ = ["Attachment", "attach", "look_on", "watch"]
