"""Arithmetic on arguments alone: which rows go where, and how outputs become one."""
