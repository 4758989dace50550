"""Workplace topics for the reading tasks, second half: rooms, machines, safety and habits."""

from corpus_topics import Topic

TOPICS_TWO: tuple[Topic, ...] = (
    Topic(("first aid", "injuries", "accidents"), (
        "Who helps when somebody is hurt?", "I have cut my hand, what do I do?",
        "Where is {n} given?", "Who can put on a bandage?", "A colleague fell, who helps?",
        "I am injured, where do I go?", "Where are the plasters?",
    ), ("{person} gives first aid.", "The first aid box is in the {place}.",
        "Injured people go to {person} in the {place}.")),
    Topic(("fire", "the fire alarm", "fire safety"), (
        "What happens in a fire?", "It is burning, where do I go?", "I hear {n}, what do I do?",
        "Where do we gather in a fire?", "Which way out do we take if there is smoke?",
        "Where is the meeting place when the alarm rings?", "How do we get out in a fire?",
    ), ("In a fire, meet at the {place}.", "When the alarm rings, leave through the {place}.",
        "{person} counts the people after a fire alarm.")),
    Topic(("the fire drill", "the safety drill", "the evacuation practice"), (
        "When is {n}?", "How often is {n}?", "When do we train for a fire?",
        "On which day do we practise getting out?", "When will the alarm be tested?",
    ), ("The drill is in {month}.", "We hold a fire drill on {day} at {time}.",
        "A drill takes place every {num} months.")),
    Topic(("the wifi", "the network", "the internet"), (
        "How do I get online?", "What is the name of {n}?", "How do I connect to {n}?",
        "What do I enter for the wireless network?", "My laptop needs the internet, what now?",
        "Which wifi should I choose?",
    ), ("The wifi is called {thing}{num}.", "The wifi password is {thing}{num}.",
        "Ask {person} for the wifi password.")),
    Topic(("passwords", "a new password", "logging in"), (
        "The system does not let me in, who helps?", "Who resets {n}?",
        "My password is lost, what now?",
        "How often do passwords change?", "I do not remember my password.",
        "My login fails, where do I go?", "Who can give me {n}?",
    ), ("{person} resets passwords.", "Passwords change every {num} weeks.",
        "For a new password go to the {place}.")),
    Topic(("computers", "broken computers", "laptops", "computer help"), (
        "My laptop is dead, who repairs it?", "The screen stays black, what now?",
        "Who looks after {n}?", "My computer is slow, whom do I ask?", "Who fixes {n}?",
        "How do I report that a computer is broken?", "My keyboard does not work.",
    ), ("{person} repairs computers.", "Bring a broken laptop to the {place}.",
        "Call extension {num} when a computer breaks.")),
    Topic(("the printer", "printing", "copies"), (
        "Where can I make copies?", "I want to print, where do I go?", "How do I use {n}?",
        "Where do I find {n}?", "What is the code of the printer?", "Who refills the paper?",
        "I need three copies of a letter, how?",
    ), ("The printer is in the {place}.", "The code for printing is {num}.",
        "{person} looks after the printer.")),
    Topic(("meeting rooms", "booking a room", "the meeting room"), (
        "Where can we meet?", "How do I reserve a room?", "How do I get a meeting room?",
        "We have a meeting, where do we sit?", "Who books {n}?", "How long may we use a room?",
        "I need a room for ten people.",
    ), ("Rooms are booked with {person}.", "The meeting room is the {place}.",
        "A room may be used for {num} hours.")),
    Topic(("visitors", "guests", "visits"), (
        "A guest is coming, what do I do?", "Where do guests register?", "How are {n} announced?",
        "What must a visitor carry?", "Who receives {n}?", "My brother visits me, what now?",
        "Where does a guest report?",
    ), ("Visitors sign in at the {place}.", "Every guest wears a {thing}.",
        "Tell {person} before a visitor comes.")),
    Topic(("parking", "the car park", "cars"), (
        "Where do I put my car?", "What does {n} cost?", "Can I park here?",
        "I drive to work, where may I stand?", "Who gives out parking permits?",
        "Where is there room for a car?", "How much do I pay to park?",
    ), ("Parking costs {money} a month.", "You may park behind the {place}.",
        "{person} gives out parking permits.")),
    Topic(("bicycles", "the bicycle shed", "bikes"), (
        "Where does my bike go?", "Where can I leave a bicycle?", "Is there a shed for {n}?",
        "Where do bikes stand?", "Who has the key for {n}?", "Where do cyclists park?",
    ), ("Bicycles stand in the {place}.", "{person} has the key of the bicycle shed.",
        "Lock your bike near the {place}.")),
    Topic(("lockers", "a locker", "storing bags"), (
        "Is there a cupboard with a lock for me?", "Who has {n}?",
        "My locker key is gone, what now?",
        "Can I have a cupboard for my things?", "How much is a new locker key?",
        "Where do I leave my valuables?",
    ), ("{person} hands out lockers.", "Lockers stand in the {place}.",
        "A new locker key costs {money}.")),
    Topic(("lost property", "lost things", "found things"), (
        "I have lost my hat, where is it?", "Where do found things go?", "My umbrella is missing.",
        "I found a purse, where do I bring it?", "Who keeps {n}?", "Where do I look for my ring?",
        "I cannot find my bag, whom do I ask?", "How long is {n} kept?",
    ), ("Lost things are kept in the {place}.", "Bring found things to {person}.",
        "We keep lost property for {num} weeks.")),
    Topic(("the canteen", "meals", "food"), (
        "What can I eat here?", "What does a meal cost?", "Where can I buy lunch?",
        "Which dish is served?", "What is on the menu?", "How much is {n}?",
        "I am hungry, where do I go?",
    ), ("A meal in the canteen costs {money}.", "The canteen is in the {place}.",
        "On {day} the canteen serves {dish}.")),
    Topic(("coffee", "tea", "the tea break", "drinks"), (
        "Who makes the coffee?", "When do we have tea?", "Where can I get a hot drink?",
        "What does coffee cost?", "When is {n}?", "Who boils the water?", "I am thirsty.",
    ), ("Coffee costs {num} pence.", "{person} makes the tea at {time}.",
        "The tea break is at {time}.")),
    Topic(("the kitchen", "washing up", "cleaning the kitchen"), (
        "Who washes the cups?", "Who cleans {n}?", "Whose turn is it to wash the dishes?",
        "Who has to tidy up?", "Where do dirty plates go?", "The sink is full, who cleans it?",
    ), ("{person} cleans the kitchen on {day}.", "Dirty cups go into the {thing}.",
        "Each team does the washing up for {num} days.")),
    Topic(("pets", "dogs", "animals at work"), (
        "May I bring my cat?", "Are {n} allowed?", "Can my dog come along?",
        "When are animals welcome?", "May a kitten live in the office?",
        "Where must pets not go?",
    ), ("Dogs are allowed on {day}.", "No animals may enter the {place}.",
        "Ask {person} before you bring a pet.")),
    Topic(("smoking", "cigarettes"), (
        "Where can people smoke?", "Is {n} allowed?", "I would like to smoke, where?",
        "May I light a pipe?", "Is there a place for smokers?",
    ), ("Smoking is allowed behind the {place}.", "Nobody may smoke in the {place}.")),
    Topic(("music", "the radio", "noise", "headphones"), (
        "May I listen to songs?", "Can we have {n} on?", "When is {n} allowed?",
        "Can I sing at work?", "Is it all right to turn on the radio?", "May I wear headphones?",
    ), ("Music is allowed after {time}.", "No radio in the {place}.",
        "{person} chooses the music on {day}.")),
    Topic(("the dress code", "work clothes", "uniforms", "shoes"), (
        "What should I wear?", "How do we dress?", "What are the rules for {n}?",
        "Do I need a uniform?", "Which shoes are right?", "Can I come in jeans?",
        "What clothes are needed?",
    ), ("Everyone wears a {colour} shirt.", "In the {place} we wear {colour} boots.",
        "{person} hands out the work clothes.")),
    Topic(("the laundry", "dirty clothes", "washing clothes"), (
        "Who washes my work coat?", "My jacket is dirty, what now?", "Where do dirty clothes go?",
        "When is {n} collected?", "How do I get clean overalls?", "My shirt has a stain.",
    ), ("Dirty clothes go into the {thing} on {day}.", "The laundry is fetched at {time}.",
        "{person} takes care of the laundry.")),
    Topic(("goggles", "gloves", "helmets", "safety equipment"), (
        "Where do I get {n}?", "Who hands out {n}?", "What protects my head?",
        "Where do I find {n}?", "My gloves are torn, who has new ones?",
        "How do I keep dust out of my eyes?", "What must I put on for safety?",
    ), ("Helmets and goggles are in the {place}.", "{person} gives out new gloves.",
        "Wear goggles near the {machine}.")),
    Topic(("tools", "borrowing tools", "the tool store"), (
        "May I borrow a hammer?", "Can I take a saw home?", "Where are {n} kept?",
        "I need a ladder for my garden, what now?", "Who lends {n}?", "How do I lend a ladder?",
        "Where must I write that I took something?",
    ), ("Tools are kept in the {place}.", "{person} lends tools for {num} days.",
        "Write borrowed tools in the {thing}.")),
    Topic(("machines", "machine repairs", "the big machine"), (
        "The machine has stopped, whom do I call?", "Who repairs {n}?", "When are {n} oiled?",
        "Something is broken, who mends it?", "How often is the equipment checked?",
    ), ("{person} repairs the {machine}.", "The {machine} is oiled on {day}.",
        "If the {machine} stops, press the {colour} button.")),
    Topic(("orders", "supplies", "material", "buying things"), (
        "We need more paper, who buys it?", "Who orders {n}?", "How do I order {n}?",
        "There is no paint left, what now?", "When are {n} bought?", "Our stock is running low.",
        "From whom do I get more material?",
    ), ("{person} orders new material.", "Orders are made every {num} weeks.",
        "Write what you need in the {thing}.")),
    Topic(("quality checks", "testing", "tests of our goods"), (
        "How do we check our work?", "Who tests the goods?", "How are finished things checked?",
        "Where are {n} done?", "What happens before we sell something?", "How long is each test?",
    ), ("Each piece is tested for {num} minutes.", "{person} checks all finished goods.",
        "Testing is done in the {place}.")),
    Topic(("parcels", "the post", "mail", "deliveries"), (
        "When is the mail fetched?", "I have to send a package, by when?", "Where do letters go?",
        "Who takes {n}?", "When do {n} leave?", "Where do I bring a parcel?",
        "How late can I still post a letter?",
    ), ("The post leaves at {time}.", "Parcels go to the {place}.",
        "{person} fetches the mail at {time}.")),
    Topic(("returns", "goods sent back", "exchanges"), (
        "Can a customer bring something back?", "How long can people return goods?",
        "A buyer wants his money back, what now?", "What is the last day to return goods?",
        "Who handles {n}?", "What is the rule for {n}?",
    ), ("Goods may be returned within {num} days.", "{person} handles returns.")),
    Topic(("complaints", "unhappy customers", "problems with clients"), (
        "A client is angry, what do I do?", "Who answers {n}?", "Who deals with {n}?",
        "Somebody is not happy with our goods, whom do I tell?", "Where do {n} go?",
        "A customer complains, who takes care of it?",
    ), ("{person} answers complaints.", "Complaints are answered within {num} days.",
        "Write every complaint in the {thing}.")),
    Topic(("the press", "journalists", "newspapers", "interviews"), (
        "A reporter is on the telephone, what now?", "Who speaks to {n}?",
        "May I give an interview?", "The newspaper wants to know something, who answers?",
        "Who talks with reporters?",
    ), ("Only {person} speaks to newspapers.", "Send journalists to {person}.")),
    Topic(("rubbish", "waste", "recycling", "leftovers"), (
        "Where does {n} go?", "Which bin is for paper?", "Where do I throw old cardboard?",
        "What do we do with scraps?", "Where do I put broken boxes?",
        "How do we sort {n}?",
    ), ("Waste goes into the {colour} bin.", "Old paper goes to the {place}.",
        "The rubbish is collected on {day}.")),
    Topic(("spills", "a mess", "cleaning up"), (
        "I have spilt oil, what now?", "Something is on the floor, who cleans it?",
        "The floor is wet with paint, what now?", "What helps against {n}?",
        "What do I put on a puddle?", "I made a mess, what helps?",
    ), ("Cover a spill with sand from the {place}.", "Call {person} when something is spilt.",
        "For a mess use the {colour} cloth.")),
    Topic(("the party", "celebrations", "the company festival", "the outing"), (
        "When do we celebrate?", "Where is {n}?", "On which date is {n}?",
        "Is there a feast?", "Who plans {n}?", "When is our next party?",
        "Will there be dancing?",
    ), ("The party is on {day} at {time}.", "We celebrate in {month} in the {place}.",
        "{person} plans the party.")),
    Topic(("birthdays", "birthday cakes", "my birthday"), (
        "What do I get for {n}?", "Who bakes the cake?", "How do we celebrate {n}?",
        "I turn forty tomorrow, what happens?", "Is there a birthday present?",
    ), ("On your birthday you get a {thing}.", "{person} brings a cake on birthdays.",
        "Birthdays are celebrated at {time}.")),
    Topic(("ideas", "suggestions", "proposals"), (
        "I have a good idea, whom do I tell?", "Where do {n} go?", "How do I propose something?",
        "What do I win with an idea?", "I thought of an improvement, what now?",
        "Is there a box for {n}?",
    ), ("Ideas go into the {thing} in the {place}.", "The best idea wins {money}.",
        "Tell {person} your suggestions.")),
    Topic(("keys", "badges", "the key", "door codes"), (
        "I have lost my badge, what now?", "Who has {n}?", "How do I open the door?",
        "Who gives me a key?", "What is the code of the door?", "I cannot get in.",
    ), ("{person} has the keys of the {place}.", "The door code is {num}.",
        "A new badge costs {money}.")),
    Topic(("heating", "windows", "the temperature"), (
        "It is cold in here, what can I do?", "Who turns on {n}?", "May I open a window?",
        "When is {n} switched on?", "It is too hot, whom do I ask?",
    ), ("The heating is switched on in {month}.", "{person} sets the heating.",
        "Windows are closed at {time}.")),
    Topic(("lights", "lamps", "electricity"), (
        "Who turns off {n}?", "A lamp is broken, who changes it?", "When do {n} go out?",
        "It is dark in the hall, what now?",
    ), ("{person} turns off the lights at {time}.", "New lamps are in the {place}.")),
    Topic(("plants", "flowers", "the garden"), (
        "Who waters {n}?", "Who looks after {n}?", "When are {n} watered?",
        "The leaves are dry, who helps?", "Can I work in the garden?",
    ), ("{person} waters the plants on {day}.", "The garden is behind the {place}.")),
    Topic(("the telephone", "calls", "phones"), (
        "Who answers {n}?", "What number do I dial?", "May I make private calls?",
        "How do I call outside?", "Can I use my mobile?",
    ), ("Dial {num} to call outside.", "{person} answers the telephone until {time}.",
        "Private calls are allowed in the {place}.")),
    Topic(("the newsletter", "news", "announcements"), (
        "Where do I read {n}?", "Who writes {n}?", "When does {n} come out?",
        "How do I hear what is going on?",
    ), ("{person} writes the newsletter.", "News is posted in the {place} on {day}.")),
)

GENERAL_ASKS = (
    "What is the rule about {n}?", "What do I need to know about {n}?", "Tell me about {n}.",
    "What does the handbook say about {n}?", "I have a question about {n}.",
    "Is there a rule about {n}?", "What is said about {n}?", "Can you explain {n} to me?",
)
