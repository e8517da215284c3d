"""The one place that imports Dynamo, AISimulate and AI Configurator; used in child processes."""
