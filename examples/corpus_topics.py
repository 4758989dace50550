"""Workplace topics for the reading tasks, first half: time, money, leave and people.

A rule's slots (``{time}``, ``{person}`` ...) are filled anew each time, so that nothing but the
text in the conversation tells the answer. ``{n}`` is any of the topic's nouns.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """A thing that workplaces have rules about, with many ways to ask and to state it."""

    nouns: tuple[str, ...]
    asks: tuple[str, ...]
    rules: tuple[str, ...]


TOPICS_ONE: tuple[Topic, ...] = (
    Topic(("opening times", "office hours", "opening hours"), (
        "When does the office open?", "What time do you open?", "How early can I come in?",
        "When do the doors open?", "From when can I get in?", "What are the {n}?",
        "At what hour is the place unlocked?", "What time does the shop open in the morning?",
    ), ("The {place} opens at {time}.", "{person} unlocks the {place} at {time}.",
        "The {place} is open from {time} to {time}.")),
    Topic(("closing time", "the end of the day", "going home"), (
        "When does the office close?", "What time can I go home?", "When is work finished?",
        "When does the day end?", "At what hour do we stop?", "How late is the place open?",
        "Until what time do we work?", "When may I leave in the evening?",
    ), ("Work ends at {time}.", "The {place} closes at {time}.",
        "Everybody may go home at {time}.")),
    Topic(("the lunch break", "lunch", "the midday break"), (
        "When is {n}?", "What time do we eat?", "How long is {n}?", "When can I eat something?",
        "How much time do I have for lunch?", "At what time is the midday meal?",
    ), ("Lunch is from {time} to {time}.", "The lunch break lasts {num} minutes.",
        "We eat together in the {place} at {time}.")),
    Topic(("annual leave", "holiday", "paid holiday", "vacation", "time off"), (
        "How much {n} do I get?", "How many days off do I have?", "What is the {n} allowance?",
        "How many free days are there in a year?", "How long a vacation can I take?",
        "How long can I go on holiday?", "How many days may I be away each year?",
        "How much leave is there?",
    ), ("Everyone has {num} days of leave a year.", "The holiday allowance is {num} days.",
        "Each person gets {num} days off a year.")),
    Topic(("leave requests", "asking for leave", "booking holiday"), (
        "How do I ask for leave?", "Who approves my days off?", "Who signs my holiday form?",
        "How do I request a vacation?", "Where do I apply for time off?",
        "I want to take a day off, whom do I ask?", "How do I arrange my holiday?",
        "Who looks at holiday forms?",
    ), ("Ask {person} for leave {num} weeks ahead.", "{person} approves all holiday.",
        "Put your holiday request into the {thing} in the {place}.")),
    Topic(("illness", "being ill", "sick days", "sickness"), (
        "What do I do when I am sick?", "I have a fever, whom do I call?",
        "Who must know that I am ill?", "How do I report {n}?", "I feel unwell, what now?",
        "Whom do I ring if I cannot come in because I am ill?", "I have a cold, what do I do?",
        "How do I let you know that I am sick?",
    ), ("If you are ill, call {person} before {time}.", "Report sickness to {person}.",
        "Ring extension {num} when you are ill.")),
    Topic(("a doctor's note", "sick notes", "medical certificates"), (
        "When do I need a sick note?", "Must I bring a note from the doctor?",
        "Where do I give my doctor's letter?", "After how long must a doctor sign a note?",
        "How long may I be sick without a note?", "Who gets my medical certificate?",
    ), ("A doctor's note is needed after {num} days.", "Give your sick note to {person}.",
        "From day {num} of an illness we need a note.")),
    Topic(("payday", "wages", "salary", "pay"), (
        "When do I get my money?", "On which day are we paid?", "When does my salary come?",
        "What day do we get our wages?", "When are people paid?", "When is {n} sent?",
        "On what day of the month does the pay arrive?",
    ), ("We pay salaries on day {num} of the month.", "Wages are paid on {day}.",
        "{person} hands out the pay on {day}.")),
    Topic(("overtime", "extra hours", "working longer"), (
        "Is {n} paid?", "What do I get for extra work?", "How are extra hours paid?",
        "How much overtime may I do?", "I stayed longer, do I get money for that?",
        "What is the pay for working late?", "What happens when I work more than usual?",
    ), ("Overtime earns {money} an hour.", "Nobody works more than {num} extra hours a week.",
        "Extra hours must be agreed with {person}.")),
    Topic(("the trial period", "probation"), (
        "How long is {n}?", "How long do you watch beginners?", "When is my trial over?",
        "How many weeks does a new worker stay on trial?", "How long must I prove myself?",
        "What is the length of {n} for beginners?",
    ), ("The trial period is {num} weeks.", "New people are on probation for {num} months.",
        "{person} watches over the trial of new staff.")),
    Topic(("notice", "resigning", "leaving the company", "quitting"), (
        "How do I quit?", "How much notice do I give?", "I want to leave my job, what do I do?",
        "How soon before the end must I resign?", "Who gets my letter of resignation?",
        "How many weeks before I go must I tell you?", "What is the notice period?",
    ), ("Notice is {num} weeks.", "If you resign, write to {person}.",
        "Give your notice to {person} {num} weeks before you leave.")),
    Topic(("parental leave", "leave for a new baby", "maternity leave"), (
        "I am having a baby, what leave is there?", "How long is {n}?",
        "How many weeks do new mothers and fathers have?", "What do parents get at a birth?",
        "We expect a child, how long may I stay home?", "Is there {n}?",
    ), ("New parents stay at home for {num} weeks.", "Parental leave is {num} months.",
        "Tell {person} about parental leave.")),
    Topic(("weddings", "getting married", "marriage"), (
        "I am getting married, what do I get?", "Do I have a free day for my marriage?",
        "How many days off are given for {n}?", "What do newly married people receive?",
        "My wedding is soon, may I stay away?", "Is there a gift for {n}?",
    ), ("For a wedding you have {num} free days.", "Newly weds receive a {thing} from {person}.",
        "Whoever marries gets {money}.")),
    Topic(("funerals", "a death in the family", "bereavement"), (
        "My uncle has died, can I take time off?", "How long may I be away for a funeral?",
        "Is there leave for mourning?", "What happens after {n}?",
        "I have lost my father, how many days may I stay at home?", "What leave is there for {n}?",
    ), ("After a death you may be absent for {num} days.", "For a funeral there are {num} days.",
        "Speak to {person} when a relative has died.")),
    Topic(("home working", "working from home", "remote work"), (
        "May I work at home?", "Is {n} possible?", "How many days can I work from my house?",
        "Which days are home days?", "What is the rule for {n}?",
        "Can I do my job from home?", "When is {n} allowed?",
    ), ("Home working is allowed on {day}.", "You may work from home {num} days a week.",
        "{person} decides who works from home.")),
    Topic(("being late", "arriving late", "delays"), (
        "I am late, what do I do?", "Whom do I tell when I am delayed?", "What if my bus is late?",
        "I overslept, who must know?", "My alarm clock failed, what now?",
        "I am stuck in traffic, whom do I inform?", "I cannot be there on time, what now?",
    ), ("If you are late, call {person}.", "Late people report to the {place}.",
        "Send a message before {time} if you are delayed.")),
    Topic(("clocking in", "recording hours", "time sheets"), (
        "How are my hours recorded?", "Where do I sign in?", "How do I write down my time?",
        "What do I do with my time sheet?", "How do you know when I came to work?",
        "How do I register my working hours?", "Where do I clock in?",
    ), ("Write your hours in the {thing}.", "Clock in at the {thing} in the {place}.",
        "Give your time sheet to {person} on {day}.")),
    Topic(("shifts", "swapping shifts", "the rota"), (
        "Can I trade my shift?", "How do I change shifts with a workmate?",
        "Who plans the rota?", "How can I swap with a colleague?", "Who decides about {n}?",
        "My colleague and I want to exchange shifts, how?", "Until when may shifts be changed?",
    ), ("Shifts may be swapped until {day}.", "{person} plans all shifts.",
        "To change a shift, write it in the {thing}.")),
    Topic(("weekend work", "Saturday work", "working at weekends"), (
        "Must I work on Sunday?", "Is there {n}?", "When do people work on Saturday?",
        "What do I get for {n}?", "Is Sunday a working day?",
        "How many weekends do we work?", "Do I have to be there on a Saturday?",
    ), ("There is weekend work in {month}.", "Work on a Saturday earns {money}.",
        "We work on {num} Saturdays a year.")),
    Topic(("the yearly review", "appraisals", "performance reviews", "feedback"), (
        "When do I get feedback?", "Who does {n}?", "In which month is {n}?",
        "When will my boss talk about my work?", "How often are people reviewed?",
        "When is my appraisal?", "With whom do I have my yearly review?",
    ), ("Reviews are held in {month}.", "{person} holds the yearly review.",
        "Each person has a review every {num} months.")),
    Topic(("training", "courses", "further education", "learning"), (
        "How do I get a course?", "What can I spend on {n}?", "Who pays for my class?",
        "I want to learn something new, who helps?", "How much money is there for {n}?",
        "Who books courses?", "Can I go to a seminar?", "How much can a seminar cost?",
    ), ("There are {money} a year for courses.", "{person} books all training.",
        "Everyone may take {num} courses a year.")),
    Topic(("expenses", "receipts", "refunds"), (
        "How do I get my money back?", "I bought something for work, who pays me?",
        "Where do receipts go?", "When are {n} paid?", "How do I hand in {n}?",
        "I spent my own money, how is it repaid?", "How is a cost refunded?",
    ), ("Expenses are refunded within {num} days.", "Give your receipts to {person}.",
        "Put receipts into the {thing} in the {place}.")),
    Topic(("meals on trips", "the meal allowance", "food on journeys"), (
        "How much may I spend on food?", "What is the limit for dinner on a journey?",
        "What can my meals cost when I am away?", "How much do I get to eat on a trip?",
        "What is the daily amount for food?", "I am travelling for work, what can I eat for?",
    ), ("Meals on a trip may cost {money} a day.", "The food allowance is {money}.",
        "For dinner you may spend {money}.")),
    Topic(("train tickets", "travel", "business trips", "flights"), (
        "Who books my journey?", "How do I get a ticket?", "I have to travel, who arranges it?",
        "Who buys {n}?", "In which class do I travel?", "I have to fly to Spain, whom do I ask?",
        "Who organises {n}?",
    ), ("{person} books all journeys.", "Tickets are ordered {num} days ahead.",
        "Ask {person} in the {place} for tickets.")),
    Topic(("hotels", "hotel rooms", "nights away"), (
        "What may a hotel cost?", "How dear can my room be?", "What is the limit for {n}?",
        "How much is paid for a night away?", "May I sleep in an expensive hotel?",
        "Who reserves {n}?", "I sleep in another town, what can the room cost?",
    ), ("A hotel may cost {money} a night.", "{person} books hotel rooms.",
        "The limit for a room is {money}.")),
    Topic(("cycling to work", "coming by bicycle", "the cycling allowance"), (
        "I come by bike, do I get anything?", "What is paid for {n}?",
        "Is there a reward for cyclists?", "How much money do people on bicycles get?",
        "I cycle here, does the firm pay me?", "What is the allowance for each mile by bike?",
    ), ("Cyclists get {money} a month.", "Whoever comes by bike receives a {thing}.",
        "We pay {num} pence a mile to cyclists.")),
    Topic(("pensions", "the pension", "retirement"), (
        "What do you pay into my pension?", "Is there a plan for {n}?", "When can I retire?",
        "What do I get when I am old?", "How much is saved for my retirement?",
        "How does {n} work?", "Who knows about {n}?",
    ), ("The company puts {num} per cent into the pension.", "{person} explains the pension.",
        "The pension plan starts after {num} months.")),
    Topic(("long service", "anniversaries", "staying many years"), (
        "What do I get after many years?", "How is long service rewarded?",
        "I have been here for twenty years, what do I get?", "Is there a prize for {n}?",
        "What do loyal workers receive?", "What happens on a work anniversary?",
    ), ("After {num} years you get {money}.", "Long service is rewarded with a {thing}.",
        "{person} gives a speech after {num} years.")),
    Topic(("the staff discount", "buying our products", "cheaper goods for staff"), (
        "Can I buy our goods cheaper?", "What is {n}?", "How much less do workers pay?",
        "Do employees get a lower price?", "What do our goods cost for me?",
        "What reduction do staff get?", "How many things may I buy at a lower price?",
    ), ("Staff pay {num} per cent less.", "Workers may buy {num} things a year at half price.",
        "The discount for staff is {num} per cent.")),
    Topic(("recommending a friend", "finding new staff", "hiring"), (
        "What do I get for bringing a friend?", "My sister needs a job, is there a reward?",
        "Is there a bonus for {n}?", "Who hires new people?", "I know a good worker, what now?",
        "Do I earn something if I recommend somebody?", "What is paid for a new colleague?",
    ), ("For a new colleague you receive {money}.", "{person} hires new people.",
        "If your friend is hired, you get {money}.")),
    Topic(("volunteering", "charity work", "helping others"), (
        "Does helping a charity count as work?", "How many days are there for {n}?",
        "Is {n} paid?", "I want to do something good, may I?", "May I volunteer?",
        "How long may I help a school?",
    ), ("You may volunteer {num} days a year.", "{person} plans our charity work.",
        "We help at the {place} every {month}.")),
    Topic(("moving house", "a new address", "a change of address"), (
        "I have moved, whom do I tell?", "Do I get a day for {n}?", "My address is new, what now?",
        "Where do I report {n}?", "I have a new flat, who needs to know?",
    ), ("For moving house there are {num} free days.", "Tell {person} your new address.")),
    Topic(("bank details", "a new bank account"), (
        "My bank has changed, what do I do?", "Who gets my account number?",
        "Where do I give you {n}?", "How do I change {n}?", "I have opened another account.",
    ), ("Give new bank details to {person}.", "Bank details are changed in the {place}.")),
    Topic(("mentors", "new colleagues", "the first day"), (
        "Who shows me around?", "Who looks after new people?", "Where do I go on my first day?",
        "I am new here, who helps me?", "Who is my mentor?", "What happens on the first day?",
    ), ("{person} looks after new people.", "On the first day go to the {place} at {time}.",
        "Each newcomer has a mentor for {num} weeks.")),
    Topic(("the eye test", "glasses", "eye tests"), (
        "Who pays for my glasses?", "Can I have my eyes checked?", "Is there money for {n}?",
        "I need new spectacles, does the firm help?", "How often can I have {n}?",
    ), ("An eye test is paid every {num} years.", "We pay {money} towards glasses.")),
    Topic(("childcare", "the nursery", "children at work"), (
        "Can I bring my son?", "Is there a nursery?", "Who looks after my children?",
        "May my daughter come to the office?", "What is there for small children?",
    ), ("The nursery is in the {place}.", "Children may come along on {day}.",
        "{person} runs the nursery.")),
)
