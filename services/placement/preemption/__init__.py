"""Reservations for plans of the preemptor, suspension and migration of pods."""
