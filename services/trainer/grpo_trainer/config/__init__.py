"""The configuration: the keys of a run file, and the sources of their values.

run_config.py   the run file, with the other sections; section.py: the base of all sections
algorithm.py    the section `algorithm`; checkpoint.py: `checkpoint`; chord.py: `chord`; data.py: `data`;
                episodes.py: `episodes`; guards.py: `guards`; model.py: `model`; lora.py: `model.lora`;
                observing.py: `logging` and `server`;
                optimization.py: `optimizer` and `deepspeed`; lr_schedule.py: the schedules and their parameters;
                rollout.py: `rollout`; teacher.py: `teacher`, of the run or of a dataset; weights.py: `weights` and
                `canary`
cold_start.py   the file of a cold start
settings.py     files, environment and flags → a run file or the file of a cold start
yaml_file.py    … of which a file, and what YAML reads otherwise than it was meant; expected_types.py
command_words.py    … and the words of the command line; keys.py: all names, and the nearest one to a name that is none;
                other_names.py: names of TRL and ms-swift; look_alikes.py: characters that look like others
peer_options.py what the options of another trainer become here, as a table; trl_options.py, open_r1_options.py,
                swift_options.py
doubts.py       settings that are allowed and seldom intended; idle_settings.py: those that another one leaves without
                effect; changes.py: what a resumed run has otherwise than before
"""
