"""Python runs this when it starts with this directory on its path. The processes that Spark forks for its tasks have
then imported what they need, which would take each of them a second of CPU. Spark's own daemon imports next to nothing,
because libraries may start threads; none of these does."""

import gc
import sys
from importlib import import_module

if "pyspark.daemon" in sys.orig_argv:
    for _module in (sys.orig_argv[-1], "pandas", "pyspark_metatxn", "metatxn.client", "metatxn.sync", "uvloop"):
        import_module(_module)
    gc.collect()
    gc.freeze()
