#!/usr/bin/env bash
# test_resume_ranks.sh - test_resume.sh with three ranks, who write a state together.
exec bash tests/train/test_resume.sh "$1" 4 3
