"""What a server is asked: lengths, arrival times and texts, from real data or drawn at random."""
