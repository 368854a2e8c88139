"""The configuration: the keys of a run file, and the sources of their values.

run_config.py   the run file, with the other sections; section.py: the base of all sections
algorithm.py    the section `algorithm`; checkpoint.py: `checkpoint`; data.py: `data`; guards.py: `guards`;
                model.py: `model`; lora.py: `model.lora`; optimization.py: `optimizer` and `deepspeed`;
                teacher.py: `teacher`, of the run or of a dataset
cold_start.py   the file of a cold start
settings.py     files, environment and flags → a run file or the file of a cold start
doubts.py       settings that are allowed and seldom intended
"""
