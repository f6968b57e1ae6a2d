//! Predictions that people can check: tables of measured runs beside what the planner says, search for layouts.
