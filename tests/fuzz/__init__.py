"""Bad input: whatever bytes come, a decoder answers with a value that it writes back the same, or with its own error.

targets.py      the table of decoders, what each may raise, what must hold of what it accepts, and good input
test_fuzz.py    all of them, with Hypothesis, the same examples in every run
coverage.py     one of them, forever, with atheris: what reaches new branches is kept and changed further
__main__.py     all of them with atheris, for some minutes (`make fuzz`)
"""
