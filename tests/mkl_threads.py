"""The thread count of MKL."""

from lrcore.system.threads import mkl


def thread_count() -> int:
    """Return MKL's thread count of this thread, or 0 if it follows the process."""
    library = mkl()
    count = library.MKL_Set_Num_Threads_Local(0)
    library.MKL_Set_Num_Threads_Local(count)
    return count
