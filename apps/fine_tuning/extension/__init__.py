"""Extensions: new jobs that continue the training of jobs that have succeeded."""
